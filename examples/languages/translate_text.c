// Runs an export with `text=True` with ONNX Runtime's C API: strings in, strings out.
//
//     cc translate_text.c -I INCLUDE -L LIB -l onnxruntime -o translate_text
//     ./translate_text text_model.onnx libortextensions.so "a first line" "a second line"
//
// The library of onnxruntime-extensions has the operators of the tokenizer.

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
  check(ort->RegisterCustomOpsLibrary_V2(options, arguments[2]));
  check(ort->CreateSession(env, arguments[1], options, &session));

  int64_t lines = count - 3;
  OrtAllocator *allocator;
  OrtValue *text = NULL, *found = NULL;
  check(ort->GetAllocatorWithDefaultOptions(&allocator));
  check(ort->CreateTensorAsOrtValue(allocator, &lines, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
                                    &text));
  check(ort->FillStringTensor(text, (const char *const *)arguments + 3, lines));
  const char *inputs[] = {"text"}, *outputs[] = {"texts"};
  check(ort->Run(session, NULL, inputs, (const OrtValue *const *)&text, 1, outputs, 1, &found));

  // texts is (B, W): the best hypothesis of each line is first.
  OrtTensorTypeAndShapeInfo *info;
  int64_t sizes[2];
  check(ort->GetTensorTypeAndShape(found, &info));
  check(ort->GetDimensions(info, sizes, 2));
  for (int64_t i = 0; i < lines; i++) {
    size_t length;
    check(ort->GetStringTensorElementLength(found, i * sizes[1], &length));
    char *best = malloc(length + 1);
    check(ort->GetStringTensorElement(found, length, i * sizes[1], best));
    best[length] = 0;
    printf("%s\n", best);
    free(best);
  }

  ort->ReleaseTensorTypeAndShapeInfo(info);
  ort->ReleaseValue(found);
  ort->ReleaseValue(text);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
  ort->ReleaseEnv(env);
  return 0;
}
