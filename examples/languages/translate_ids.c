// Runs an export with ONNX Runtime's C API: token ids in, token ids out.
//
//     cc translate_ids.c -I INCLUDE -L LIB -l onnxruntime -o translate_ids
//     ./translate_ids model.onnx 57 8 21 3
//
// The last id is the end token, 3. The program prints the ids of the best hypothesis.

#include <stdio.h>
#include <stdlib.h>
#include "onnxruntime_c_api.h"

static const OrtApi *ort;

static void check(OrtStatus *status) {
  if (status == NULL) return;
  fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
  exit(1);
}

int main(int count, char **arguments) {
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  OrtEnv *env;
  OrtSessionOptions *options;
  OrtSession *session;
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "translate", &env));
  check(ort->CreateSessionOptions(&options));
  check(ort->CreateSession(env, arguments[1], options, &session));

  // One sentence, so the shape is (1, S). Pad the rows of a batch with 0 on the right.
  int64_t shape[] = {1, count - 2};
  int32_t *ids = malloc(shape[1] * sizeof *ids);
  for (int64_t i = 0; i < shape[1]; i++) ids[i] = atoi(arguments[i + 2]);
  OrtMemoryInfo *memory;
  OrtValue *source = NULL, *found = NULL;
  check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  check(ort->CreateTensorWithDataAsOrtValue(memory, ids, shape[1] * sizeof *ids, shape, 2,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, &source));
  const char *inputs[] = {"source_ids"}, *outputs[] = {"token_ids"};
  check(ort->Run(session, NULL, inputs, (const OrtValue *const *)&source, 1, outputs, 1, &found));

  // token_ids is (1, W, T): the best hypothesis is first, with its end token, then padding 0.
  OrtTensorTypeAndShapeInfo *info;
  int64_t sizes[3];
  int32_t *best;
  check(ort->GetTensorTypeAndShape(found, &info));
  check(ort->GetDimensions(info, sizes, 3));
  check(ort->GetTensorMutableData(found, (void **)&best));
  for (int64_t i = 0; i < sizes[2] && best[i] > 3; i++) printf("%d ", best[i]);
  printf("\n");

  ort->ReleaseTensorTypeAndShapeInfo(info);
  ort->ReleaseValue(found);
  ort->ReleaseValue(source);
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
  ort->ReleaseEnv(env);
  free(ids);
  return 0;
}
