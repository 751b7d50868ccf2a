#pragma once

#include <string>
#include <string_view>

#include "data/cached_dataset.h"
#include "data/dataset_options.h"

namespace ballast::data {

// Each scan reads the headers of one directory's cache, one file at a time, and appends what it
// finds to `content`: a group of items, allowed buckets, notes, what is not cached.

// A folder of cached samples and no media (data/latent_cache.h). Nothing could make a broken file
// again, so it is an error.
bool is_sample_folder(const std::string& folder, bool captions = true);
void scan_sample_folder(const std::string& folder, double repeats, bool shuffle,
                        const DatasetRequest& request, DatasetContent& content);

// A folder of media with its cache below it. Media whose cache is absent, broken or made from
// something else count as not cached.
void scan_media_folder(const MediaDirectory& directory, const std::string& clip_mode,
                       const DatasetRequest& request, DatasetContent& content);

// The buckets that a dataset of musubi-tuner allows.
void add_musubi_buckets(const MusubiDataset& dataset, const DatasetRequest& request,
                        DatasetContent& content);
// musubi-tuner: latent files NAME_..._wan.safetensors with a NAME_wan_te.safetensors.
void scan_musubi(const MusubiDataset& dataset, const DatasetRequest& request,
                 DatasetContent& content);

// X.latent.safetensors with an X.safetensors beside it, in the folder and all below it.
void scan_embedding_pairs(const std::string& folder, const DatasetRequest& request,
                          DatasetContent& content);

// What of a dataset of musubi-tuner or of a folder of pairs is to be encoded. Training looks at
// their caches alone; these list the media.
void list_musubi_work(const MusubiDataset& dataset, const DatasetRequest& request,
                      DatasetContent& content);
// "clip" of clip_00000-081_0832x0480_wan.safetensors (of an image without its frames); empty for
// any other name.
std::string_view musubi_latent_stem(std::string_view name, bool video);
// Stands in the cache while the clips of one media file are written.
std::string musubi_unfinished_mark(const std::string& cache, std::string_view stem);
void list_embedding_pair_work(const std::string& folder, const DatasetRequest& request,
                              DatasetContent& content);

// What sample ids of a directory begin with: its last name, with a number where another has it.
std::string label_of(const std::string& folder, const DatasetContent& content);

// Puts items into the fixed order by which a part of them is taken when repeats < 1.
void shuffle_items(ItemGroup& group);

}  // namespace ballast::data
