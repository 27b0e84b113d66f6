"""Whatever happens to requests, the load they counted for goes back to zero."""

from __future__ import annotations

import asyncio

import httpx

from tests.torture.system import System, all_good, eventually, gained, peak_to_mean, system, text


async def leave_early(found: System, count: int) -> None:
    """Streams whose clients leave after the first piece, or before it."""
    async with httpx.AsyncClient(base_url=found.url, timeout=30.0) as client:

        async def one(number: int) -> None:
            body = {"model": "sim", "prompt": text(60), "max_tokens": 400, "stream": True, "ignore_eos": True}
            try:
                async with asyncio.timeout(0.05 if number % 3 == 0 else 20.0):
                    async with client.stream("POST", "/v1/completions", json=body) as answer:
                        async for _piece in answer.aiter_raw():
                            if number % 3:
                                return
            except TimeoutError:
                return

        await asyncio.gather(*(one(number) for number in range(count)))


def test_after_clients_left_and_requests_failed_the_fleet_is_used_evenly() -> None:
    with system(4, speedup=5) as found:
        asyncio.run(leave_early(found, 90))
        for wrong in ({"max_tokens": -1}, {"prompt": []}, {"model": "nobody has this"}):
            body = {"model": "sim", "prompt": "x"} | wrong
            assert httpx.post(f"{found.url}/v1/completions", json=body, timeout=30.0).status_code >= 400
        eventually("the engines are idle", lambda: found.running() == 0)
        served = found.served()
        all_good(found.ask_all([text(40) for _ in range(120)], at_once=12))
        assert peak_to_mean(gained(served, found.served())) <= 1.5
        if found.admin is not None:
            assert httpx.get(f"{found.admin}/loads").json()["open_bookings"] == 0
