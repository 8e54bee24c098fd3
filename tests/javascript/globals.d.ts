// What the pages have besides their own modules: the two vendored libraries, and the playground as a page around it sees it.

declare var d3: any;
declare var Plot: any;
declare var playground: { state: object; race: object; pause(): void };
