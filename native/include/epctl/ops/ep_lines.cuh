// Rows in lines of 128 bytes whose last 8 bytes are the call's number: a row needs no flag behind it.
//
// A line is written by one store instruction of 8 neighbouring lanes, and read by one load instruction: over NVLink,
// and in memory, it stays whole (NCCL's protocol LL128 rests on the same).
#pragma once

#include "epctl/ops/ep_details.cuh"

namespace epctl::ep {

constexpr uint32_t kGroupBytes = 512;  // four lines: what a warp writes at once
constexpr uint32_t kGroupWords = 60;   // of 8 bytes, without the numbers
constexpr uint32_t kWordBytes = 8;

// What a lane holds of a group: words `first` and `first + 1`, but the second is the number in every eighth lane.
struct Cut {
    uint32_t first;
    bool numbered;
};

__device__ __forceinline__ Cut cut_of_lane() {
    return Cut{2 * lane_idx() - lane_idx() / 8, lane_idx() % 8 == 7};
}

struct Pair {
    uint64_t one, other;
};

__device__ __forceinline__ void store_group(uint8_t* group, const Pair& words) {
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(group + lane_idx() * kVectorBytes), "l"(words.one),
                 "l"(words.other)
                 : "memory");
}

__device__ __forceinline__ Pair load_group(const uint8_t* group) {
    Pair words;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(words.one), "=l"(words.other)
                 : "l"(group + lane_idx() * kVectorBytes)
                 : "memory");
    return words;
}

// `num` groups from `slot` on, as soon as all carry the number. The whole warp; false when they do not come.
template <uint32_t kGroups>
__device__ __forceinline__ bool wait_groups(const WaitLimits& limits, const uint8_t* slot, uint32_t num, uint64_t epoch,
                                            uint32_t peer, Stage stage, Pair (&words)[kGroups]) {
    const bool numbered = cut_of_lane().numbered;
    return wait_until_warp(limits, epoch, peer, stage, epoch, [&]() -> uint64_t {
        bool all = true;
#pragma unroll
        for (uint32_t i = 0; i < kGroups; ++i) {
            if (i >= num) continue;
            words[i] = load_group(slot + i * kGroupBytes);
            all = all && (!numbered || words[i].other == epoch);
        }
        return __all_sync(kAll, all) ? epoch : epoch - 1;
    });
}

// How a row is cut: groups of the row, then groups of its details.
struct Slots {
    uint32_t row_words, row_groups, row_units, detail_groups, num_units;
    uint64_t bytes;
};

__device__ __forceinline__ Slots slots_of(uint32_t row_bytes, uint32_t num_details, uint32_t unit_groups) {
    Slots slots;
    slots.row_words = row_bytes / kWordBytes;
    slots.row_groups = (slots.row_words + kGroupWords - 1) / kGroupWords;
    slots.row_units = (slots.row_groups + unit_groups - 1) / unit_groups;
    slots.detail_groups = (num_details + 2 * kGroupWords - 1) / (2 * kGroupWords);
    slots.num_units = slots.row_units + 1;
    slots.bytes = static_cast<uint64_t>(slots.row_groups + slots.detail_groups) * kGroupBytes;
    return slots;
}

// Words of group `group` of a row in memory, and the number.
__device__ __forceinline__ Pair cut_row(const uint64_t* row, uint32_t row_words, uint32_t group, uint64_t epoch) {
    const Cut cut = cut_of_lane();
    const uint32_t word = group * kGroupWords + cut.first;
    Pair words{0, epoch};
    if (word < row_words) words.one = row[word];
    if (!cut.numbered) words.other = word + 1 < row_words ? row[word + 1] : 0;
    return words;
}

__device__ __forceinline__ void paste_row(uint64_t* row, uint32_t row_words, uint32_t group, const Pair& words) {
    const Cut cut = cut_of_lane();
    const uint32_t word = group * kGroupWords + cut.first;
    if (word < row_words) row[word] = words.one;
    if (!cut.numbered && word + 1 < row_words) row[word + 1] = words.other;
}

// The same for details: element(i) gives the 32 bits of detail i.
template <class Element>
__device__ __forceinline__ Pair cut_details(uint32_t num_details, uint32_t group, uint64_t epoch, Element element) {
    const Cut cut = cut_of_lane();
    const uint32_t first = 2 * (group * kGroupWords + cut.first);
    auto at_index = [&](uint32_t i) -> uint64_t { return i < num_details ? element(i) : 0; };
    Pair words{at_index(first) | at_index(first + 1) << 32, epoch};
    if (!cut.numbered) words.other = at_index(first + 2) | at_index(first + 3) << 32;
    return words;
}

template <class Put>
__device__ __forceinline__ void paste_details(uint32_t num_details, uint32_t group, const Pair& words, Put put) {
    const Cut cut = cut_of_lane();
    const uint32_t first = 2 * (group * kGroupWords + cut.first);
    const uint32_t parts[4] = {static_cast<uint32_t>(words.one), static_cast<uint32_t>(words.one >> 32),
                               static_cast<uint32_t>(words.other), static_cast<uint32_t>(words.other >> 32)};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
        if (first + i < num_details && (i < 2 || !cut.numbered)) put(first + i, parts[i]);
}

__device__ __forceinline__ uint8_t* slot_at(const Peers& peers, uint32_t rank, uint64_t offset, uint64_t num_tokens,
                                            uint64_t epoch, uint32_t source, uint32_t token, uint64_t slot_bytes) {
    const uint64_t index = ((epoch & 1) * peers.num_ranks + source) * num_tokens + token;
    return peers.base[rank] + offset + index * slot_bytes;
}

}  // namespace epctl::ep
