// Light, dark, or as the system says. Where storage is closed the choice holds until the page is left.

const KEY = "gpuloom-theme";
const ORDER = ["system", "light", "dark"];

export function startTheme(button, changed) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let choice = ORDER.includes(read()) ? read() : "system";

  function apply() {
    const dark = choice === "dark" || (choice === "system" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.title = `Theme: ${choice} (t)`;
    changed();
  }

  button.addEventListener("click", () => {
    choice = ORDER[(ORDER.indexOf(choice) + 1) % ORDER.length];
    write(choice);
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

function read() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function write(choice) {
  try {
    localStorage.setItem(KEY, choice);
  } catch {
    // Nothing is kept then.
  }
}
