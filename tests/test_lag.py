import asyncio
import time

from agentgym.lag import LagMeter


async def test_what_blocks_the_loop_is_measured_once():
    async with LagMeter() as meter:
        await asyncio.sleep(0.15)
        meter.take()
        time.sleep(0.4)  # noqa: ASYNC251  this is what is measured
        await asyncio.sleep(0.1)
        assert 0.3 < meter.take() < 2.0
        await asyncio.sleep(0.01)
        assert meter.take() < 0.3
