// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	_ "embed"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

//go:embed testdata/axe.min.js
var axe string

// violations are the rules of WCAG 2.2, levels A and AA, that the page breaks, as axe-core finds them, with the elements that break
// them. https://github.com/dequelabs/axe-core/blob/develop/doc/API.md
const violations = `axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}).then(r => r.violations.map(v =>
	v.id + ": " + v.help + v.nodes.map(n => "\n\t" + n.target + " " + n.any.concat(n.all).map(c => c.message)).join("")).join("\n"))`

// hidden names what the visitor would have to scroll sideways for: the picture of a Service, and which Services and endpoints are used.
const hidden = `[...document.querySelectorAll("svg.picture, #table :is(th, td):nth-child(3), #service details[open] :is(th, td):nth-child(2)")]
	.filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.tagName === "svg" ? "the picture" : e.textContent)[0] ?? ""`

// Each view is as WCAG 2.2 AA asks, on a telephone, a tablet and a desk, in light and in dark, and does not scroll sideways.
func TestAccessible(t *testing.T) {
	startProxy(t, service(0, 6)+service(1, 150)+service(2, 0))
	ctx := visit(t)
	do(t, ctx, chromedp.Navigate("http://"+address+"/"))
	_ = evaluate(t, ctx, axe+`; ""`)
	views := []struct{ name, fragment, selector, part string }{
		{"status", "status", "#facts", "3 Services"},
		{"services", "services", "#table", "shop/web-002"},
		{"service", "service/shop/web-001", "#service", "149 of 150 endpoints are ready"},
		{"broken", "service/shop/web-002", "#service-name", "shop/web-002"},
		{"explain", "explain//shop%2Fweb-002", "#verdict", "STOPS HERE ("},
		{"events", "events", "#programmed", "full"},
	}
	for _, width := range []int64{390, 800, 1600} {
		for _, colors := range []string{"light", "dark"} {
			do(t, ctx, chromedp.EmulateViewport(width, 900))
			scheme(t, ctx, colors)
			for _, v := range views {
				name := fmt.Sprintf("%s-%d-%s", v.name, width, colors)
				_ = evaluate(t, ctx, fmt.Sprintf("location.hash = %q", v.fragment))
				text(t, ctx, v.selector, v.part)
				if found := axeFinds(t, ctx); found != "" {
					t.Errorf("%s:\n%s", name, found)
				}
				if cut := evaluate(t, ctx, hidden); cut != "" {
					t.Errorf("%s: %s is cut", name, cut)
				}
				if wide := evaluate(t, ctx, `String(Math.max(document.documentElement.scrollWidth - innerWidth, 0))`); wide != "0" {
					t.Errorf("%s is %s pixels wider than the window", name, wide)
				}
			}
		}
	}
}

func axeFinds(t *testing.T, ctx context.Context) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := chromedp.Run(ctx, chromedp.Evaluate[string](violations, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	return found
}
