#ifndef BALLAST_C_H
#define BALLAST_C_H

/* Ballast from C and from every language that can call C: libballast.so.0.
 *
 * Settings go in and results come out as UTF-8 JSON; arrays are DLPack tensors. Every function that
 * returns int returns 0 or the exit code of the program:
 *   1 internal error (please report), 2 usage, 3 does not fit, 4 bad input, 5 GPU, 6 file or disk
 * and then writes to *err, unless err is null, what went wrong:
 *   {"code": 4, "message": "...", "trail": ["..."], "advice": [{"change": "...", "effect": "..."}]}
 * Texts that come out through a char** belong to the caller, who gives them to ballast_free().
 * Results are written only when the function returns 0; what a null pointer asks for is not made.
 *
 * Any thread may call. One handle is for one thread at a time; different handles are independent.
 * After fork() the child may not use the library: every call in it returns 2.
 */

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define BALLAST_API __attribute__((visibility("default")))
#else
#define BALLAST_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when functions are added; what is here stays as it is within libballast.so.0. */
#define BALLAST_ABI 1u

/* An array as DLPack 1.0 describes it. Who includes dlpack.h too includes it first. */
#ifndef DLPACK_DLPACK_H_
typedef struct {
  int32_t device_type; /* 1: CPU, 3: pinned memory of the CPU */
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code; /* 2: float, 4: bfloat16 */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; null: row by row */
  uint64_t byte_offset;
} DLTensor;
#endif

BALLAST_API uint32_t ballast_abi(void);
/* {"version": "0.2.0", "abi": 1, "cuda": false, "isa": "avx2"}; of the library, never freed. */
BALLAST_API const char* ballast_version_json(void);
BALLAST_API void ballast_free(char* text);

/* What the person who waits is told. level 0 debug, 1 info, 2 warning: a line. 3: progress,
 * {"kind": "progress", "what": "reading weights", "done": 12, "total": 40, "unit": "count" or
 * "bytes", "ended": false}; total 0 is unknown, the last one of each has "ended". Without a
 * function (null) it goes to stderr. Called from any thread, one call at a time; it must not call
 * the library. */
typedef void (*ballast_log_function)(int level, const char* text, void* user);
BALLAST_API void ballast_set_log(ballast_log_function function, void* user);

/* -- commands ------------------------------------------------------------------------------- */

/* A command of the program in this process, without the word "ballast":
 *   {"plan", "--model", "wan2.2-t2v-a14b", "--gpu", "24GB", "--json"}
 * output: what it prints. A run that does not fit returns 3 and still fills `output` and `err`. */
BALLAST_API int ballast_command(const char* const* arguments, size_t count, char** output,
                                char** err);

/* The plan of a run, as `ballast plan --json` prints it. request:
 *   {"config": "lora.toml", "flags": {"gpu": "24GB"}}
 *   {"flags": {"model": "wan2.2-t2v-a14b", "mode": "lora", "frames": 81, "gpu": "24GB"}}
 * Flags are named as on the command line, without dashes in front; true stands for a flag without a
 * value, a list for one that is given several times. A plan that does not fit is an answer too: 0,
 * with "fits": false and the advice. */
BALLAST_API int ballast_plan(const char* request, char** json, char** err);

/* What a file or folder holds, as `ballast inspect --json` prints it. */
BALLAST_API int ballast_inspect(const char* path, char** json, char** err);

/* -- training as `ballast train` does it ----------------------------------------------------- */

/* Asks a training to save a checkpoint and end. Any thread may set it; a signal handler too. */
typedef struct ballast_stop ballast_stop;
BALLAST_API ballast_stop* ballast_stop_new(void);
BALLAST_API void ballast_stop_set(ballast_stop* stop);
BALLAST_API void ballast_stop_free(ballast_stop* stop);

/* All optional; called on the thread that called ballast_train(). */
typedef struct {
  uint32_t struct_size; /* sizeof(ballast_train_callbacks) */
  void* user;
  void (*note)(const char* text, void* user);    /* about the configuration */
  void (*planned)(const char* json, void* user); /* as ballast_model_plan() gives it */
  void (*step)(const char* json, void* user);    /* {"step", "total_steps", "epoch", "loss", ...} */
} ballast_train_callbacks;

/* flags: as behind the file on the command line. result: {"folder", "report", "steps", ...}. */
BALLAST_API int ballast_train(const char* config, const char* const* flags, size_t count,
                              const ballast_train_callbacks* callbacks, ballast_stop* stop,
                              char** result, char** err);

/* -- one transformer, trained or asked ------------------------------------------------------- */

typedef struct ballast_model ballast_model;

/* A safetensors file, an index of shards, a folder, or a model id of the local cache. */
BALLAST_API int ballast_model_open(const char* path, ballast_model** model, char** err);
BALLAST_API int ballast_model_info(ballast_model* model, char** json, char** err);

/* Any of these keys; those that are not named stay as they are, null is the default again:
 *   "gpu", "ram", "disk": bytes, or a text such as "24GB"
 *   "threads": 0 (all processors) or more; "device": "auto", "cpu", "cuda"; "deterministic": bool
 *   "gradient_checkpointing", "offloading": true, false, or null (the planner chooses)
 *   "batches": [[[frames, height, width], ...], ...]   latents of every kind of step
 *   "training": {"method": "lora", "full" or "predict_only", "rank", "alpha", "dropout",
 *                "init_from", "optimizer", "learning_rate", "beta1", "beta2", "eps",
 *                "weight_decay", "ema_decay", "max_grad_norm", "seed", "weights", "timesteps",
 *                "shift", "min_t", "max_t", "time_offset"}
 *   "learning_rate": number
 * Memory settings (the first, second and third line) and batches may also change between steps: the
 * next call plans anew, trained tensors and optimizer state stay the same to the bit. */
BALLAST_API int ballast_model_settings(ballast_model* model, const char* json, char** err);

/* {"fits", "planned": {"device", "host", "disk", "ram"}, "allowed": {...}, "seconds_per_step",
 *  "policy", "text", "advice": [...], "plan": as `ballast plan --json` prints it} */
BALLAST_API int ballast_model_plan(ballast_model* model, char** json, char** err);
/* Loads the weights; otherwise the first step or prediction does. */
BALLAST_API int ballast_model_start(ballast_model* model, char** err);

/* Arrays of f32, f16 or bf16 in memory of the CPU, row by row; null where the model takes none.
 * They must stay during the call only. */
typedef struct {
  uint32_t struct_size;         /* sizeof(ballast_sample) */
  const DLTensor* latent;       /* [latent_channels, frames, height, width]; normalised, clean */
  const DLTensor* conditioning; /* [conditioning_channels, frames, height, width] */
  const DLTensor* text;         /* [rows, text_width] */
  double t;                     /* noise fraction from 0 to 1; NaN: drawn */
} ballast_sample;

/* One optimizer step. result: {"step", "loss", "grad_norm", "seconds", "updated"}. */
BALLAST_API int ballast_model_step(ballast_model* model, const ballast_sample* samples,
                                   size_t count, char** result, char** err);
/* The model's output for a latent as it is; model_time is 1000 t. out: the latent's shape, f32, f16
 * or bf16, written in place. */
BALLAST_API int ballast_model_predict(ballast_model* model, const ballast_sample* sample,
                                      double model_time, DLTensor* out, char** err);

/* {"what": "lora" or "model", "path": "...", "dtype": "bf16", "f16" or "f32",
 *  "format": "comfy", "kohya" or "peft"}, or {"what": "checkpoint", "path": folder, "keep": 3}. */
BALLAST_API int ballast_model_save(ballast_model* model, const char* what, char** err);
/* found: whether there was one. */
BALLAST_API int ballast_model_load_checkpoint(ballast_model* model, const char* folder, int* found,
                                              char** err);
/* {"device", "host", "disk", "ram"}: most of each that was used so far. */
BALLAST_API int ballast_model_measured(ballast_model* model, char** json, char** err);
BALLAST_API void ballast_model_close(ballast_model* model);

/* -- a VAE: pixels to latents and back ------------------------------------------------------- */

typedef struct ballast_vae ballast_vae;

/* settings, null or any of "gpu", "ram", "device", "threads", "dtype" ("f32" or "bf16"), and
 * "clamp" (decoded pixels to -1 ... 1; true unless given). */
BALLAST_API int ballast_vae_open(const char* path, const char* settings, ballast_vae** vae,
                                 char** err);
/* {"name", "z_dim", "pixels_per_cell", "frames_per_cell"} */
BALLAST_API int ballast_vae_info(ballast_vae* vae, char** json, char** err);
/* video: [frames, height, width, 3] from -1 to 1, 4 n + 1 frames;
 * latent: [z_dim, n + 1, height / pixels_per_cell, width / pixels_per_cell], normalised. */
BALLAST_API int ballast_vae_encode(ballast_vae* vae, const DLTensor* video, DLTensor* latent,
                                   char** err);
BALLAST_API int ballast_vae_decode(ballast_vae* vae, const DLTensor* latent, DLTensor* video,
                                   char** err);
BALLAST_API void ballast_vae_close(ballast_vae* vae);

/* -- a text encoder --------------------------------------------------------------------------- */

typedef struct ballast_text ballast_text;

/* A text encoder with its tokenizer beside it: the folder of a Wan model, or files of one.
 * settings, null or any of "gpu", "ram", "device", "threads", "tokenizer" (a path). */
BALLAST_API int ballast_text_open(const char* path, const char* settings, ballast_text** text,
                                  char** err);
/* {"width", "rows"}: of the states of a prompt, and the most of them. */
BALLAST_API int ballast_text_info(ballast_text* text, char** json, char** err);
/* states: [rows, width]; count: the rows that the prompt fills, the others become zero. */
BALLAST_API int ballast_text_states(ballast_text* text, const char* prompt, DLTensor* states,
                                    int64_t* count, char** err);
BALLAST_API void ballast_text_close(ballast_text* text);

#ifdef __cplusplus
}
#endif

#endif
