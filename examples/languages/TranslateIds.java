// Runs an export with ONNX Runtime's Java API: token ids in, token ids out.
//
//     javac -cp onnxruntime.jar TranslateIds.java
//     java -cp onnxruntime.jar:. TranslateIds model.onnx 57 8 21 3
//
// The last id is the end token, 3. The program prints the ids of the best hypothesis.

import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import java.nio.IntBuffer;
import java.util.Arrays;
import java.util.Map;

public class TranslateIds {
  public static void main(String[] arguments) throws OrtException {
    OrtEnvironment environment = OrtEnvironment.getEnvironment();
    int[] ids = Arrays.stream(arguments).skip(1).mapToInt(Integer::parseInt).toArray();
    long[] shape = {1, ids.length}; // one sentence; pad the rows of a batch with 0 on the right
    try (OrtSession session = environment.createSession(arguments[0]);
        OnnxTensor source = OnnxTensor.createTensor(environment, IntBuffer.wrap(ids), shape);
        OrtSession.Result found = session.run(Map.of("source_ids", source))) {
      int[][][] tokens = (int[][][]) found.get("token_ids").get().getValue(); // (1, W, T)
      for (int id : tokens[0][0]) {
        if (id > 3) System.out.print(id + " "); // without the end token and padding
      }
      System.out.println();
    }
  }
}
