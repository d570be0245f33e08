/** Attention as a table: a row for each token of the translation, a column for each token of the text. */

/**
 * @param {number[][]} weights T rows of S
 * @param {string[]} from S pieces, in which "▁" is a space
 * @param {string[]} to T pieces
 * @param {string} [source] language of the text
 * @param {string} [target] language of the translation
 */
export function attentionTable(weights, from, to, source = "", target = "") {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  head.append(document.createElement("td"), ...from.map((piece) => header(piece, "col", source)));
  const body = table.createTBody();
  weights.forEach((row, step) => {
    const line = body.insertRow();
    line.append(header(to[step], "row", target));
    for (const weight of row) {
      const cell = line.insertCell();
      cell.style.setProperty("--weight", weight.toFixed(3));
      cell.textContent = weight.toFixed(2);
    }
  });
  return table;
}

/** @param {string} piece @param {string} scope @param {string} language */
function header(piece, scope, language) {
  const cell = document.createElement("th");
  cell.scope = scope;
  cell.lang = language;
  cell.textContent = piece.replace("▁", " ").trim() || "space";
  return cell;
}
