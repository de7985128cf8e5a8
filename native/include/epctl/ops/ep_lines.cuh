// Rows in lines of 128 bytes whose last 8 bytes are the call's number: a row needs no flag behind it.
//
// A line is written by one store instruction of 8 neighbouring lanes, and read by one load instruction: over NVLink,
// and in memory, it stays whole (NCCL's protocol LL128 rests on the same).
#pragma once

#include "epctl/ops/ep_common.cuh"

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

__device__ __forceinline__ void store_group(uint8_t* group, const Pair& words) {
    store_lines(group + lane_idx() * kVectorBytes, words);
}

__device__ __forceinline__ Pair load_group(const uint8_t* group) {
    return load_lines(group + lane_idx() * kVectorBytes);
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

// How a row is cut: groups of the row, groups of its scales, and one for its selections.
struct Slots {
    uint32_t row_words, row_groups, row_units, num_scales, scale_groups, num_units;
    uint64_t bytes;
};

__device__ __forceinline__ Slots slots_of(uint32_t row_bytes, uint32_t scale_bytes, uint32_t unit_groups) {
    Slots slots;
    slots.row_words = row_bytes / kWordBytes;
    slots.row_groups = (slots.row_words + kGroupWords - 1) / kGroupWords;
    slots.row_units = (slots.row_groups + unit_groups - 1) / unit_groups;
    slots.num_scales = scale_bytes / 4;
    slots.scale_groups = (slots.num_scales + 2 * kGroupWords - 1) / (2 * kGroupWords);
    slots.num_units = slots.row_units + 1;
    slots.bytes = static_cast<uint64_t>(slots.row_groups + slots.scale_groups + 1) * kGroupBytes;
    return slots;
}

// The groups of a unit of a row: where this lane's first word lies in the row, and how many words are from there on.
struct Part {
    uint32_t group;      // the first
    uint32_t num;        // of groups
    uint32_t word;       // of this lane in the row
    int32_t num_behind;  // words of the row from there on
};

__device__ __forceinline__ Part part_of(const Slots& slots, uint32_t unit, uint32_t unit_groups) {
    Part part;
    part.group = unit * unit_groups;
    part.num = min(unit_groups, slots.row_groups - min(part.group, slots.row_groups));
    part.word = part.group * kGroupWords + cut_of_lane().first;
    part.num_behind = static_cast<int32_t>(slots.row_words) - static_cast<int32_t>(part.word);
    return part;
}

// Code is fetched from memory as data is, and runs once: what follows is kept short before it is kept clever.

template <uint32_t kGroups>
__device__ __forceinline__ void cut_row(Pair (&words)[kGroups], const uint64_t* row, const Part& part, uint64_t epoch) {
    const bool numbered = cut_of_lane().numbered;
    const uint64_t* const from = row + part.word;
#pragma unroll
    for (uint32_t i = 0; i < kGroups; ++i) {
        const int32_t behind = part.num_behind - static_cast<int32_t>(i * kGroupWords);
        words[i] = Pair{0, numbered ? epoch : 0};
        if (behind > 0) words[i].one = from[i * kGroupWords];
        if (behind > 1 && !numbered) words[i].other = from[i * kGroupWords + 1];
    }
}

template <uint32_t kGroups>
__device__ __forceinline__ void paste_row(uint64_t* row, const Part& part, const Pair (&words)[kGroups]) {
    const bool numbered = cut_of_lane().numbered;
    uint64_t* const to = row + part.word;
#pragma unroll
    for (uint32_t i = 0; i < kGroups; ++i) {
        const int32_t behind = part.num_behind - static_cast<int32_t>(i * kGroupWords);
        if (behind > 0) to[i * kGroupWords] = words[i].one;
        if (behind > 1 && !numbered) to[i * kGroupWords + 1] = words[i].other;
    }
}

template <uint32_t kGroups>
__device__ __forceinline__ void store_groups(uint8_t* slot, const Part& part, const Pair (&words)[kGroups]) {
#pragma unroll
    for (uint32_t i = 0; i < kGroups; ++i)
        if (i < part.num) store_group(slot + (part.group + i) * kGroupBytes, words[i]);
}

// A group of `num` values of 32 bits, from the first that this group has.
__device__ __forceinline__ Pair cut_halves(const uint32_t* from, uint32_t num, uint64_t epoch) {
    const Cut cut = cut_of_lane();
    const uint32_t first = 2 * cut.first;
    uint32_t parts[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) parts[i] = first + i < num ? from[first + i] : 0;
    return Pair{parts[0] | static_cast<uint64_t>(parts[1]) << 32,
                cut.numbered ? epoch : parts[2] | static_cast<uint64_t>(parts[3]) << 32};
}

__device__ __forceinline__ void paste_halves(uint32_t* to, uint32_t num, const Pair& words) {
    const Cut cut = cut_of_lane();
    const uint32_t first = 2 * cut.first;
    const uint32_t parts[4] = {static_cast<uint32_t>(words.one), static_cast<uint32_t>(words.one >> 32),
                               static_cast<uint32_t>(words.other), static_cast<uint32_t>(words.other >> 32)};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
        if (first + i < num && (i < 2 || !cut.numbered)) to[first + i] = parts[i];
}

// A group with one word for each selection: word(k) gives it.
template <class Word>
__device__ __forceinline__ Pair cut_selections(uint32_t num_topk, uint64_t epoch, Word word) {
    const Cut cut = cut_of_lane();
    Pair words{0, cut.numbered ? epoch : 0};
    if (cut.first < num_topk) words.one = word(cut.first);
    if (cut.first + 1 < num_topk && !cut.numbered) words.other = word(cut.first + 1);
    return words;
}

template <class Put>
__device__ __forceinline__ void paste_selections(uint32_t num_topk, const Pair& words, Put put) {
    const Cut cut = cut_of_lane();
    if (cut.first < num_topk) put(cut.first, words.one);
    if (cut.first + 1 < num_topk && !cut.numbered) put(cut.first + 1, words.other);
}

__device__ __forceinline__ uint8_t* slot_at(const Peers& peers, uint32_t rank, uint64_t offset, uint64_t num_tokens,
                                            uint64_t epoch, uint32_t source, uint32_t token, uint64_t slot_bytes) {
    const uint64_t index = ((epoch & 1) * peers.num_ranks + source) * num_tokens + token;
    return peers.base[rank] + offset + index * slot_bytes;
}

}  // namespace epctl::ep
