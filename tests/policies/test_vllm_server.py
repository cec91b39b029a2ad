from agentgym.policies.vllm_server import LOG_LINE

LOG = """\
(APIServer pid=7) INFO 12-01 05:00:01 [api_server.py:120] Loading the model
(APIServer pid=7) WARNING 12-01 05:00:02 [serve.py:9] SECURITY WARNING: development endpoints are enabled
(Worker pid=9) INFO 12-01 05:00:03 [cpu_worker.py:55] auto thread-binding list (id, physical core): reserved_cpus=[]
 a line of a table
"""


def test_the_log_line_that_is_shown_while_it_starts_means_something():
    assert LOG_LINE.findall(LOG) == ["Loading the model"]
