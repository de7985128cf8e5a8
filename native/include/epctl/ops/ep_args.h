// Arguments and shared state of the expert-parallel kernels, for device and host code alike; native/ep_args.py packs
// the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "epctl/comm/peers.h"
#include "epctl/common/wait_record.h"

namespace epctl {

constexpr uint32_t kEpMaxTopk = 16;
constexpr uint32_t kEpMaxExperts = 1024;
constexpr uint32_t kEpMaxHidden = 16384;
constexpr uint32_t kEpMaxBlocks = 256;
// Of a rank's arrivals in one call: every block of the sender adds its share, however many blocks there are.
constexpr uint64_t kEpArrivalUnit = 1u << 20;

// Counters of one buffer on one rank, in its own memory. They live on the device so that a captured graph goes on
// counting at each replay.
struct EpState {
    uint64_t dispatch_epoch;  // calls that have been sent
    uint64_t dispatch_finished;
    uint64_t combine_sent;     // combines by their halves
    uint64_t small_sent;       // calls of the kernels for few tokens, by their halves
    uint32_t dispatch_ticket;  // blocks that have read the call's number, modulo theirs
    uint32_t experts_ticket;
    uint32_t combine_ticket;
    uint32_t expand_ticket;
    uint64_t expand_epoch;
    uint64_t small_received;
    uint64_t small_returned;
    uint64_t small_combined;
    uint32_t small_ticket;
    uint32_t reserved;
    uint32_t combine_next[2];  // units of a combine that have been claimed, by the parity of its number
    uint64_t combine_received;
    uint64_t pull_epoch;
    uint32_t pull_ticket;
    uint32_t reserved2;
    uint64_t small_gate;  // number of the call of few tokens whose masks are on their way
};
static_assert(sizeof(EpState) == 128, "native/ep_args.py");

// One call's shape; equal on all ranks but for num_tokens.
struct EpShape {
    uint32_t num_tokens;
    uint32_t max_tokens;  // of any rank: stride of the global token index
    uint32_t row_bytes;
    uint32_t scale_bytes;  // of a row; 0 without scales
    uint32_t num_topk;
    uint32_t num_experts;
    uint32_t experts_per_rank;
    uint32_t wide_indices;  // 1: topk indices are 64 bits wide, 0: 32
};

// Offsets in symmetric memory. Words carry the call's number in their upper half and a value in their lower half, so
// that they need no flag beside them.
struct EpOffsets {
    uint64_t ready;      // [source] dispatch number: the source's outputs may be written
    uint64_t totals;     // [2][source][total_columns] words: tokens for each rank, entries for my experts
    uint64_t arrived;    // [source] units of kEpArrivalUnit
    uint64_t announced;  // [2][source][2]: where the source's rows and weights for combine lie
    uint64_t pulled;     // [source] units: how much of my rows the source has read
    uint64_t rows;       // [ranks × max_tokens] rows
    uint64_t scales;     // the same number of rows of scales
    uint64_t indices;    // … of top-k indices
    uint64_t weights;    // … of top-k weights
    uint64_t metadata;   // … of num_topk + 2 words
};

struct DispatchArgs {
    Peers peers;
    EpOffsets at;
    EpShape shape;
    const void* x;
    const void* scales;
    const void* topk_indices;
    const float* topk_weights;
    int32_t* routes;  // [tokens, topk]: rank << 24 | row there, at the last selection that lies on that rank; else −1
    EpState* state;
    uint64_t* chunk_words;     // [2][ranks][kEpMaxBlocks]
    uint32_t* expert_counts;   // [experts], zero between calls
    int32_t* tokens_per_rank;  // [ranks] inclusive sums of what each source sent
    int32_t* expert_sums;      // [experts_per_rank], see EPHandle.psum_num_recv_tokens_per_expert
    int32_t* expert_tokens;    // [experts_per_rank] real counts
    int32_t* statistics;       // [experts_per_rank] or null: real counts are added
    int64_t* host_counts;      // host memory or null: call, tokens, aligned entries, aligned entries of each expert
    uint64_t* waited_ns;       // [ranks] or null: how long this rank waited for each
    int64_t host_call;
    uint32_t expert_alignment;
    uint32_t expanded;                                          // form of expert_sums
    uint32_t cached;                                            // routes are given
    uint32_t receives;                                          // 1: ends when all rows are there
    uint32_t num_warps, num_stages, slot_bytes, control_bytes;  // of the ring in shared memory
    WaitLimits limits;
};

// Few tokens: rows travel in lines of 128 bytes that carry their own flags, and nothing is exchanged before them.
constexpr uint32_t kSmallTokens = 256;
constexpr uint32_t kSmallBatches = kSmallTokens / 32;

// Offsets in symmetric memory, each for both parities of the call's number.
struct SmallOffsets {
    uint64_t masks;       // [2][source][kSmallBatches] words: which of 32 tokens come
    uint64_t experts;     // [2][source][max_local_experts] words: entries for my experts
    uint64_t lines;       // [2][source][tokens] slots of lines, for dispatch
    uint64_t here;        // [source] numbers of combines that have begun
    uint64_t returned;    // [2][source][tokens] slots of lines, for combine
    uint64_t num_tokens;  // slots of each source
    uint64_t line_bytes;  // of a slot for dispatch, whatever the rows of a call: its number alone tells where it lies
};

struct SmallDispatchArgs {
    Peers peers;
    SmallOffsets small;
    EpShape shape;
    const void* x;
    const void* scales;
    const void* topk_indices;
    const float* topk_weights;
    void* out_rows;  // this rank's own memory: the receiver writes it
    void* out_scales;
    void* out_indices;
    float* out_weights;
    int32_t* out_metadata;
    int32_t* own_rows;  // [tokens]: the row of my token in my own output, where it is there
    EpState* state;
    int32_t* tokens_per_rank;
    int32_t* expert_sums;
    int32_t* expert_tokens;
    int32_t* statistics;
    int64_t* host_counts;
    uint64_t* waited_ns;
    int64_t host_call;
    uint32_t expert_alignment;
    uint32_t expanded;
    uint32_t sends, receives;
    WaitLimits limits;
};

struct SmallCombineArgs {
    Peers peers;
    SmallOffsets small;
    EpShape shape;
    const void* x;
    const float* weights;
    const void* topk_indices;
    const int32_t* own_rows;
    const int32_t* metadata;  // of the rows received
    const int32_t* tokens_per_rank;
    const void* bias0;
    const void* bias1;
    void* out;
    float* out_weights;
    EpState* state;
    uint64_t* waited_ns;
    uint32_t expanded;  // x is expanded, and summed by token before it travels
    uint32_t sends, receives;
    uint32_t num_rows;  // that there is memory for: received ones are not more
    WaitLimits limits;
};

struct FinishArgs {
    Peers peers;
    EpOffsets at;
    EpState* state;
    uint64_t* waited_ns;
    WaitLimits limits;
};

// Behind a dispatch: rows of tokens become rows of (token, expert), grouped by expert.
struct ExpandArgs {
    EpShape shape;
    const void* rows;
    const void* scales;
    const void* indices;  // local expert numbers
    const float* weights;
    const int32_t* metadata;
    const int32_t* tokens_per_rank;
    const int32_t* expert_sums;
    const int32_t* expert_tokens;
    void* out_rows;
    void* out_scales;
    float* out_weights;
    int32_t* out_metadata;
    EpState* state;
    uint64_t* chunk_words;  // [2][experts_per_rank][kEpMaxBlocks]
    uint32_t num_ranks;
    uint32_t expert_alignment;
    uint32_t zero_padding;
    uint32_t column_scales;   // 1: out_scales has one column of rows after another
    uint32_t scale_stride;    // rows of such a column
    uint32_t num_rows_limit;  // rows that the outputs have room for
    WaitLimits limits;
};

// Offsets in symmetric memory for combine. Tokens are counted up to EpShape.max_tokens for each rank.
struct CombineOffsets {
    uint64_t told;         // [home] units of kEpArrivalUnit: the home's part of the table is written
    uint64_t table;        // [2][home][max_tokens + 1]: my row of the home's token, −1: none; then how many it has
    uint64_t landed;       // [source][max_tokens] numbers of the call whose row is there
    uint64_t partials;     // [source][max_tokens] rows
    uint64_t weights;      // [source][max_tokens][num_topk]
    uint64_t table_bytes;  // of one of the two tables, whatever the call's max_tokens
};

// Every rank pushes what it has for others to the tokens' homes, and adds up its own tokens as their rows arrive.
struct CombineArgs {
    Peers peers;
    CombineOffsets at;
    EpShape shape;
    const void* x;
    const float* weights;
    const void* topk_indices;
    const int32_t* routes;
    const int32_t* metadata;  // of an expanded x: which rows are a token's
    const void* bias0;
    const void* bias1;
    void* out;
    float* out_weights;
    EpState* state;
    uint64_t* waited_ns;
    uint32_t expanded;
    uint32_t sends, receives;
    uint32_t num_warps, num_stages, slot_bytes;  // of the ring that rows are pushed through
    WaitLimits limits;
};

// The same where every expanded row travels: homes pull them, in the order of top-k positions.
struct PullArgs {
    Peers peers;
    EpOffsets at;
    EpShape shape;
    uint64_t x_offset;  // of my rows, in symmetric memory; 16 bytes are its unit in the announcement
    uint64_t weights_offset;
    const void* local_x;  // my rows for myself
    const float* local_weights;
    const void* topk_indices;
    const int32_t* routes;
    const void* bias0;
    const void* bias1;
    void* out;
    float* out_weights;
    EpState* state;
    uint64_t* waited_ns;
    uint32_t announces;
    uint32_t pulls;
    WaitLimits limits;
};

static_assert(sizeof(SmallDispatchArgs) == 856 && sizeof(SmallCombineArgs) == 808, "native/ep_args.py");
static_assert(sizeof(EpShape) == 32 && sizeof(EpOffsets) == 80, "native/ep_args.py");
static_assert(sizeof(DispatchArgs) == 872 && offsetof(DispatchArgs, limits) == 848, "native/ep_args.py");
static_assert(sizeof(FinishArgs) == 704 && sizeof(ExpandArgs) == 192, "native/ep_args.py");
static_assert(sizeof(PullArgs) == 824 && sizeof(CombineArgs) == 800, "native/ep_args.py");

}  // namespace epctl
