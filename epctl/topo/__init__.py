"""What is wired to what: one graph of GPUs, NVLinks, PCIe, NUMA nodes, NICs and switches, out of one source or several.

Pure: it takes snapshots, texts and what readers made of tool outputs, and gives back a graph, answers about it, and texts. Nothing here
runs a command, opens a file or asks a driver.
"""
