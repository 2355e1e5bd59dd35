// Runs before the first paint, so that the page does not flash in the other theme.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("kvasir.theme");
  } catch {
    // Storage is off: the system's theme stays.
  }
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = chosen === "light" || chosen === "dark" ? chosen : system;
})();
