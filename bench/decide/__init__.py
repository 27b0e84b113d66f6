"""How fast the router decides and learns, beside Dynamo's selector in the same run. `make bench-decide`.

`prompts` and `fleet` make the state, `timing` measures our decisions, `peer` drives the other selector in a process of
its own (`dynamo_child`, run by an environment that has it), `ingest` and `memory` measure KV events, `report` prints.
"""
