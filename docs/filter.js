// A box above tables: rows that hold all words typed into it stay, and so do the headings of sections that have such rows.
document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll("input.filter")) {
    const place = box.closest("section");
    box.style.cssText = "width: 100%; padding: .5em; margin-bottom: 1em; font: inherit";
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      const holds = (part) => words.every((word) => part.textContent.toLowerCase().includes(word));
      for (const row of place.querySelectorAll("tbody tr")) row.hidden = !holds(row);
      for (const section of place.querySelectorAll("section")) {
        const rows = [...section.querySelectorAll("tbody tr")];
        section.hidden = words.length > 0 && !rows.some((row) => !row.hidden) && !holds(section);
      }
    });
  }
});
