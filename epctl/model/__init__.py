"""What to expect of an expert-parallel set-up, as arithmetic: no GPU, no process group, no command is run.

`ep` (with `ep_types`, `waterfall`) SMs and QPs of dispatch and combine · `gate`, `sampling`, `spread` how many ranks a token reaches
and how evenly · `traffic` what each stage moves · `buffers`, `fit`, `storage` memory · `channels` warps and channels · `lb`, `bucket`,
`engram` the other families · `rules` the constants, each with its source · `limits` what the kernels cannot take · `refusal` how a
request that cannot work is turned down · `timing` (with `timing_types`, `timing_rows`, `timing_bands`) how long a call takes, and at what
bandwidth · `reference` published results beside it · `advice` which mode, and why · `presets`, `deepinfer` usual calls and layouts.

Units: GB/s = 1e9 bytes/s; sizes in bytes; SMs and QPs are counts; traffic in units of one delivered copy of a token.
"""
