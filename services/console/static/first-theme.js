// The theme of the first paint, which modules come too late for; theme.js goes on from there.

{
  let choice = null;
  try {
    choice = localStorage.getItem("gpuloom-theme");
  } catch {
    // Storage is closed: as the system says.
  }
  const dark = choice === "dark" || (choice !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
