"""A diagnosis as text, JSON, YAML, JUnit and SARIF."""
