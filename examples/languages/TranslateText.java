// Runs an export with `text=True` with ONNX Runtime's Java API: strings in, strings out.
//
//     javac -cp onnxruntime.jar:onnxruntime-extensions.jar TranslateText.java
//
// The library of onnxruntime-extensions has the operators of the tokenizer.

import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import java.util.Arrays;
import java.util.Map;

public class TranslateText {
  public static void main(String[] arguments) throws OrtException {
    OrtEnvironment environment = OrtEnvironment.getEnvironment();
    OrtSession.SessionOptions options = new OrtSession.SessionOptions();
    options.registerCustomOpLibrary(arguments[1]); // or OrtxPackage.getLibraryPath()
    String[] lines = Arrays.copyOfRange(arguments, 2, arguments.length);
    try (OrtSession session = environment.createSession(arguments[0], options);
        OnnxTensor text = OnnxTensor.createTensor(environment, lines);
        OrtSession.Result found = session.run(Map.of("text", text))) {
      String[][] texts = (String[][]) found.get("texts").get().getValue(); // (B, W), best first
      for (String[] hypotheses : texts) System.out.println(hypotheses[0]);
    }
  }
}
