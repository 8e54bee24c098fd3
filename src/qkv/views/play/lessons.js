// @ts-check
// Five questions people ask, each with the arms that answer it at this size. `look` says what to look for; what a small
// model shows is evidence for small models, so each leads to the full study.

import { usual } from "./engine/switches.js";

const arm = (changes) => ({ ...usual(), ...changes });

export const LESSONS = {
  "frozen-embeddings": {
    question: "If the W matrices are trained, must the embeddings be?",
    turn: "Arm B keeps its embeddings W_E frozen at random; arm A trains them.",
    look: "Both losses fall, and within some 200 steps both pass the bigram, for W_Q, W_K, W_V and the MLP can learn to read random rows. See how far B stays behind A up to there. In “one row”, B's row is the same before and after, to the last bit.",
    scale: "At this size there are about as many kinds of characters as a row has numbers; with a vocabulary of thousands, random rows have to crowd. The text is short: a count of longer n-grams stays ahead of both, and after some 300 steps A, which has more to adapt, begins to know the text by heart: its validation loss turns up before B's.",
    state: { task: "text", layers: 2, a: arm({}), b: arm({ W_E: "freeze" }) },
  },
  "what-is-trained": {
    question: "Does training change the input embeddings, or only W_Q, W_K, W_V?",
    turn: "Nothing is frozen. Arm A learns by Adam, arm B by plain SGD.",
    look: "Switch the matrices to “change since the start”: every one has moved, W_E too. Choose a rare character under “one row”. With SGD a row moves only by gradients it received, so rare rows move little; Adam gives rare rows steps as large as those of frequent ones.",
    scale: "At this size how far a matrix moved depends on the learning rate and the optimizer. Moving is not yet learning: the full study compares with a random-label control, which still learns how frequent each token is.",
    state: { task: "text", layers: 2, token: "M", a: arm({}), b: arm({ optimizer: "sgd", rate: 0.3 }) },
  },
  collocation: {
    question: "Do words that occur together get similar vectors?",
    turn: "Arm A trains everything; arm B has W_Q = W_K = W_V = W_O = I, attention without parameters.",
    look: "Below, all cosines of rows of W_E: words that share contexts (cat, dog, fox) against words that stand together (drinks, tea). Blocks on the diagonal are kinds of words. See which of the two means rises.",
    scale: "Made sentences with clean kinds of words; in real text the two go hand in hand, and the full study has to separate them.",
    state: { task: "words", layers: 1, a: arm({}), b: arm({ W_Q: "identity", W_K: "identity", W_V: "identity", W_O: "identity" }) },
  },
  "gradient-path": {
    question: "How does the error at the output reach the first layer and the embeddings?",
    turn: "Arm B has no skip connections: everything must pass through attention and MLP.",
    look: "Switch the matrices to “gradient” and compare the sizes under W_E and layer L0. At the first step they are alike, for the norm before each sublayer rescales what passes. Within some twenty steps what reaches the bottom of B is a hundredth of what reaches that of A, and B's loss stays near the unigram.",
    scale: "Two layers are enough to see it with these norms, this start and this learning rate; the study tunes the rate, takes three layers and measures the share of each path.",
    state: { task: "text", layers: 2, a: arm({}), b: arm({ skip: false }) },
  },
  "what-moved-q": {
    question: "When queries change in training, is it because W_Q changed or because the encodings did?",
    turn: "Arm A trains everything; arm B freezes W_Q in every layer.",
    look: "Under “what moved q” the change splits exactly: dq = dx W_Q + x dW_Q + dx dW_Q. In arm B the matrix's part is exactly 0, and q moves all the same, for the encodings x move.",
    scale: "The split is exact at any size; the shares are of this model, this text and this many steps.",
    state: { task: "recall", layers: 2, a: arm({}), b: arm({ W_Q: "freeze" }) },
  },
};
