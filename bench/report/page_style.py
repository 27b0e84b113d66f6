"""The style sheet of report.html: light and dark by the reader's system, narrow screens, paper. Text only."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--ink:#212529;--faint:#5c636a;--paper:#fff;--raised:#f5f6f7;--edge:#d8dce0;--good:#2b8a3e;
--bad:#c92a2a;--warn:#b35900;--s0:#0b7285;--s1:#c2255c;--s2:#d9730d;--s3:#2b8a3e;--s4:#5f3dc4;--s5:#495057}
@media(prefers-color-scheme:dark){:root{--ink:#e9ecef;--faint:#a5adb5;--paper:#16191d;--raised:#20252b;--edge:#39414a;
--good:#69db7c;--bad:#ff8787;--warn:#ffc078;--s0:#3bc9db;--s1:#f783ac;--s2:#ffa94d;--s3:#8ce99a;--s4:#b197fc;--s5:#adb5bd}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:72rem;margin:0 auto;
padding:1rem 1.25rem 3rem;overflow-wrap:anywhere}
h1{font-size:1.4rem;margin:.5rem 0 1rem}h2{font-size:1.15rem;margin:2.25rem 0 .6rem}p{margin:.4rem 0}
.verdict{border-left:5px solid var(--good);padding:.6rem 1rem;background:var(--raised);border-radius:0 6px 6px 0}
.verdict p:first-child{font-size:1.1rem;font-weight:600}.verdict.void{border-color:var(--warn)}
.verdict.failed{border-color:var(--bad)}
.faint{color:var(--faint);font-size:.9rem}ul{padding-left:1.2rem;margin:.4rem 0}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;min-width:min(100%,26rem)}
caption{text-align:left;color:var(--faint);font-size:.9rem;padding-bottom:.3rem}
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid var(--edge);white-space:nowrap;vertical-align:top}
thead th{border-bottom:2px solid var(--edge)}th:first-child,td:first-child{text-align:left}tbody th{font-weight:400}
td.words{white-space:normal;text-align:left;min-width:12rem}tr.group th{font-weight:600;padding-top:.7rem}
.pass{color:var(--good);font-weight:600}.fail{color:var(--bad);font-weight:600}.open{color:var(--warn);font-weight:600}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem 2rem}
figure{margin:0;break-inside:avoid;min-width:0}figcaption{font-weight:600;margin-bottom:.2rem}
figure p{font-size:.85rem;color:var(--faint);margin:.1rem 0}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1rem;font-size:.85rem;margin:.1rem 0}
.legend svg{width:26px;height:8px;margin-right:.35rem;vertical-align:middle;display:inline}
svg{display:block;width:100%;max-width:34rem;height:auto;font:13px system-ui,sans-serif;fill:var(--ink)}
.c0{--c:var(--s0)}.c1{--c:var(--s1)}.c2{--c:var(--s2)}.c3{--c:var(--s3)}.c4{--c:var(--s4)}.c5{--c:var(--s5)}
.line{fill:none;stroke:var(--c);stroke-width:2}.dot circle{fill:var(--c)}
.hollow circle{fill:var(--paper);stroke:var(--c);stroke-width:2}
.cloud{stroke:var(--c);stroke-width:3.5;stroke-linecap:round;opacity:.45;fill:none}.bar,.cell{fill:var(--c)}
.band{fill:var(--c);opacity:.13}.rule{stroke:var(--faint);stroke-width:1;fill:none}
.whisker{stroke:var(--ink);stroke-width:1.3;fill:none}.grid{stroke:var(--edge);stroke-width:.8}
code{font:.85rem ui-monospace,monospace}dl{display:grid;grid-template-columns:minmax(7rem,auto) 1fr;gap:.25rem 1rem}
dt{font-weight:600}dd{margin:0;min-width:0}
@media(max-width:36rem){body{padding:.75rem .75rem 2rem}table{font-size:.85rem}th,td{padding:.2rem .4rem}
dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}svg{font-size:15px}}
@media print{:root{--ink:#000;--faint:#444;--paper:#fff;--raised:#fff;--edge:#bbb;--s0:#0b7285;--s1:#c2255c;
--s2:#d9730d;--s3:#2b8a3e;--s4:#5f3dc4;--s5:#495057;--good:#2b8a3e;--bad:#c92a2a;--warn:#b35900}
body{max-width:none;padding:0;font-size:11pt}.wide{overflow:visible}h2{break-after:avoid}tr{break-inside:avoid}}
"""
