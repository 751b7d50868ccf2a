/* Plans and trains a LoRA on a random clip from C, and asks the model for a velocity.
 *
 *   train_lora MODEL [OUTPUT FOLDER]
 */
#include <ballast/ballast_c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kFrames = 2, kHeight = 8, kWidth = 8, kRows = 7, kSteps = 3 };

/* Prints what went wrong and ends the program with Ballast's exit code. */
static void require_ok(int code, char* error) {
  if (code == 0) return;
  fprintf(stderr, "%s\n", error != NULL ? error : "no memory");
  ballast_free(error);
  exit(code);
}

/* The number behind "name": in a text of JSON. */
static long long number_in(const char* json, const char* name) {
  char key[64];
  snprintf(key, sizeof key, "\"%s\":", name);
  const char* const at = strstr(json, key);
  return at == NULL ? 0 : strtoll(at + strlen(key), NULL, 10);
}

static float* random_values(size_t count) {
  float* const values = malloc(count * sizeof(float));
  if (values == NULL) exit(6);
  for (size_t i = 0; i < count; ++i) values[i] = (float)(rand() % 2000 - 1000) / 500.0f;
  return values;
}

static DLTensor tensor(float* values, int32_t rank, int64_t* shape) {
  DLTensor t;
  memset(&t, 0, sizeof t);
  t.data = values;
  t.device.device_type = 1; /* CPU */
  t.ndim = rank;
  t.dtype.code = 2; /* float */
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

int main(int argc, char** argv) {
  char *error = NULL, *json = NULL;
  ballast_model* model = NULL;
  if (argc < 2) {
    fprintf(stderr, "usage: train_lora MODEL [OUTPUT FOLDER]\n");
    return 2;
  }
  require_ok(ballast_model_open(argv[1], &model, &error), error);
  require_ok(ballast_model_info(model, &json, &error), error);
  const int64_t channels = number_in(json, "latent_channels");
  const int64_t extra = number_in(json, "conditioning_channels");
  const int64_t text_width = number_in(json, "text_width");
  ballast_free(json);

  require_ok(ballast_model_settings(model,
                                    "{\"training\": {\"rank\": 4, \"learning_rate\": 0.001},"
                                    " \"batches\": [[[2, 8, 8]]], \"ram\": \"2GB\"}",
                                    &error),
             error);
  require_ok(ballast_model_plan(model, &json, &error), error);
  printf("%s\n", strstr(json, "\"fits\":true") != NULL ? "the plan fits" : json);
  ballast_free(json);

  int64_t latent_shape[4] = {channels, kFrames, kHeight, kWidth};
  int64_t extra_shape[4] = {extra, kFrames, kHeight, kWidth};
  int64_t text_shape[2] = {kRows, text_width};
  const size_t cells = kFrames * kHeight * kWidth;
  float* const latent_values = random_values((size_t)channels * cells);
  float* const extra_values = random_values((size_t)extra * cells + 1);
  float* const text_values = random_values((size_t)(kRows * text_width));
  float* const velocity_values = random_values((size_t)channels * cells);
  const DLTensor latent = tensor(latent_values, 4, latent_shape);
  const DLTensor conditioning = tensor(extra_values, 4, extra_shape);
  const DLTensor text = tensor(text_values, 2, text_shape);
  DLTensor velocity = tensor(velocity_values, 4, latent_shape);
  ballast_sample sample;
  sample.struct_size = sizeof sample;
  sample.latent = &latent;
  sample.conditioning = extra > 0 ? &conditioning : NULL;
  sample.text = &text;
  sample.t = (double)NAN; /* drawn */

  for (int i = 0; i < kSteps; ++i) {
    require_ok(ballast_model_step(model, &sample, 1, &json, &error), error);
    printf("%s\n", json);
    ballast_free(json);
    /* Less memory from here on; what was trained stays. */
    if (i == 0) {
      require_ok(ballast_model_settings(model, "{\"gradient_checkpointing\": true}", &error), error);
    }
  }
  require_ok(ballast_model_predict(model, &sample, 500, &velocity, &error), error);
  printf("the velocity begins with %f\n", (double)velocity_values[0]);

  char what[4096];
  snprintf(what, sizeof what, "{\"what\": \"lora\", \"path\": \"%s/lora_c.safetensors\"}",
           argc > 2 ? argv[2] : ".");
  require_ok(ballast_model_save(model, what, &error), error);
  ballast_model_close(model);
  free(latent_values);
  free(extra_values);
  free(text_values);
  free(velocity_values);
  return 0;
}
