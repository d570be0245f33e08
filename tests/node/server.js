// The package's own server, as a process: {url, stop}.

import { spawn } from "node:child_process";
import { once } from "node:events";

export async function serve(folder) {
  const tool = new URL("../tools/serve.js", import.meta.url).pathname;
  const child = spawn(process.execPath, [tool, folder, "0"], { stdio: ["ignore", "pipe", "inherit"] });
  const [line] = await once(child.stdout, "data");
  const stop = async () => {
    child.kill();
    await once(child, "exit");
  };
  return { url: String(line).trim(), stop };
}
