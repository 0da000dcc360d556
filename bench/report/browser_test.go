// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// inspection runs in the page and stores what is wrong with it where the test finds it. Texts in
// a chart must neither leave the chart, nor cover each other; nothing may come from elsewhere.
const inspection = `<script>
addEventListener("load", () => {
  const bad = []
  if (document.documentElement.scrollWidth > document.documentElement.clientWidth) bad.push("the page is wider than the window")
  for (const e of performance.getEntriesByType("resource")) if (!e.name.startsWith("data:")) bad.push("loads " + e.name)
  document.querySelectorAll("figure").forEach(figure => {
    const name = figure.querySelector("figcaption").firstChild.textContent, svg = figure.querySelector("svg").getBoundingClientRect()
    if (svg.width < 200 || svg.height < 100) bad.push(name + ": no chart")
    const texts = [...figure.querySelectorAll("svg text")].map(e => ({text: e.textContent, ...e.getBoundingClientRect().toJSON()})).filter(t => t.text.trim())
    if (texts.length < 4) bad.push(name + ": " + texts.length + " texts")
    texts.forEach((a, i) => {
      // A text's box is some pixels higher than its letters.
      if (a.left < svg.left - 4 || a.right > svg.right + 4 || a.top < svg.top - 4 || a.bottom > svg.bottom + 4) bad.push(name + ": clipped: " + a.text)
      for (const b of texts.slice(0, i)) {
        const width = Math.min(a.right, b.right) - Math.max(a.left, b.left), height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)
        if (width > 1 && height > 4) bad.push(name + ": " + a.text + " covers " + b.text)
      }
    })
  })
  const rgb = c => c.match(/[\d.]+/g).slice(0, 3).map(Number)
  const light = c => rgb(c).map(v => v / 255).map(v => v <= .04 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0)
  const back = light(getComputedStyle(document.body).backgroundColor)
  document.querySelectorAll("p, td, th, li, a, .soft, .range, .warn, svg text").forEach(e => {
    const style = getComputedStyle(e), front = light(e.closest("svg") ? style.fill : style.color)
    const contrast = (Math.max(front, back) + .05) / (Math.min(front, back) + .05)
    if (contrast < 4.5) bad.push("contrast " + contrast.toFixed(1) + ": " + e.textContent.slice(0, 40))
  })
  const dark = back < .2 ? "dark" : "light"
  document.body.innerHTML = "<pre id=found></pre>"
  document.getElementById("found").textContent = JSON.stringify({dark, bad: [...new Set(bad)]})
})
</script>`

// chromium runs a headless browser on a page, and returns what it prints and logs.
func chromium(t *testing.T, page string, args ...string) (printed, logged string) {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v (test/deps.sh installs it)", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr", "--user-data-dir=" + t.TempDir(),
	}, args...), "file://"+page)...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, log.String())
	}
	return out.String(), log.String()
}

var found = regexp.MustCompile(`(?s)<pre id="found">(.*?)</pre>`)

// inspect opens a page in a window and returns what is wrong with it.
func inspect(t *testing.T, html, scheme, size string) (bad []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "index.html")
	if err := os.WriteFile(path, []byte(html+inspection), 0o600); err != nil {
		t.Fatal(err)
	}
	number := map[string]string{"dark": "0", "light": "1"}[scheme]
	printed, logged := chromium(t, path, "--dump-dom", "--window-size="+size, "--blink-settings=preferredColorScheme="+number)
	var answer struct {
		Dark string
		Bad  []string
	}
	m := found.FindStringSubmatch(printed)
	if m == nil {
		t.Fatalf("the page was not inspected: %.500s %s", printed, logged)
	}
	text := strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&").Replace(m[1])
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Dark != scheme {
		t.Errorf("the page is %s, want %s", answer.Dark, scheme)
	}
	for line := range strings.Lines(logged) {
		if strings.Contains(line, "CONSOLE") {
			answer.Bad = append(answer.Bad, line)
		}
	}
	return answer.Bad
}

// TestBrowser opens a page of known records in Chromium, in the light and in the dark.
func TestBrowser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index.html")
	if err := writePage(path, sampleRecords()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, bad := range inspect(t, string(b), scheme, "1280,900") {
			t.Errorf("%s: %s", scheme, bad)
		}
	}
	// The inspection finds what is put into the page.
	broken := strings.Replace(string(b), "</svg>", `<text x="0" y="10">far to the left of all else</text><text x="2" y="11">again</text></svg><img src="http://127.0.0.1:1/"><p style="color:#eee">pale</p><script>throw Error("thrown")</script>`, 1)
	all := strings.Join(inspect(t, broken, "light", "1280,900"), "\n")
	for _, want := range []string{"loads http://127.0.0.1:1/", "again covers", "contrast 1.2: pale", "CONSOLE"} {
		if !strings.Contains(all, want) {
			t.Errorf("not found: %s, in %s", want, all)
		}
	}
}
