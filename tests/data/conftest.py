collect_ignore_glob = ["*"]  # the tests below belong to tasks
