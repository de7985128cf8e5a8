"""What to expect of an expert-parallel set-up, as arithmetic: no GPU, no process group, no command is run.

`ep` SMs and QPs of dispatch and combine · `gate` and `sampling` how many ranks a token reaches · `traffic` what each stage moves ·
`buffers` memory · `channels` warps and channels · `lb`, `bucket`, `engram` the other families · `rules` the constants, each with
its source · `refusal` how a request that cannot work is turned down.

Units: GB/s = 1e9 bytes/s; sizes in bytes; SMs and QPs are counts; traffic in units of one delivered copy of a token.
"""
