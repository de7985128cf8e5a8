"""How a job of ranks comes together, meets, and ends: everywhere the same, whoever started the processes.

`run.run` is the entry; a task is a function `task(rank, request)` inside epctl. Nothing here outlives the command, hangs past its
limit, or leaves a socket, a shared-memory file or a process behind.
"""
