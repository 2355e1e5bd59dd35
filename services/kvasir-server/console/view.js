// Preact with templates instead of JSX: no build step. Every value in a template becomes a text node or a property,
// never markup.

import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";

export const html = htm.bind(h);
export { Component, createContext, render } from "./vendor/preact.js";
export { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.js";

/** @typedef {ReturnType<typeof html>} View */
