// Why the playground cannot go on with each of some runs: settings of their models on stdin, sentences on stdout.

const { why } = await import(`${process.argv[2]}../static/fits.js`);
let asked = "";
for await (const part of process.stdin) asked += part;
process.stdout.write(JSON.stringify(JSON.parse(asked).map((settings) => why(settings, ["a"], 1000))));
