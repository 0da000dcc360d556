// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// visit opens a browser. When the test ends, the browser's console must be empty.
func visit(t *testing.T) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.WindowSize(1280, 1050), chromedp.WSURLReadTimeout(patience))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	console, stop := context.WithCancel(ctx)
	messages := chromedp.Console(console)
	t.Cleanup(func() {
		stop()
		for m, err := range messages {
			if err == nil {
				t.Errorf("the browser's console: %s %s", m, m.URL)
			}
		}
	})
	return ctx
}

// do does actions as a visitor.
func do(t *testing.T, ctx context.Context, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// evaluate returns the value of an expression on the page.
func evaluate(t *testing.T, ctx context.Context, expression string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[string](expression))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// text waits until the text of an element has all parts.
func text(t *testing.T, ctx context.Context, selector string, parts ...string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		found := evaluate(t, ctx, fmt.Sprintf("document.querySelector(%q)?.textContent ?? ''", selector))
		i := slices.IndexFunc(parts, func(p string) bool { return !strings.Contains(found, p) })
		if i < 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s lacks %q:\n%s", selector, parts[i], found)
		}
	}
}

// shot takes a screenshot for the docs, if that was asked for.
func shot(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	if *screenshots == "" {
		return
	}
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// scheme has the browser prefer the color scheme light or dark.
func scheme(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		t.Fatal(err)
	}
}

// A visitor sees the proxy's state in each view, by mouse and by keyboard, in light and in dark.
func TestPage(t *testing.T) {
	manifests := func(endpoints int) string {
		all := service(0, 6) + service(1, endpoints) + service(2, 0) + service(3, 0)
		for n := 4; n < 200; n++ {
			all += service(n, 3+n%4)
		}
		return all
	}
	if err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_acct", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	change := startProxy(t, manifests(6))
	traffic(t, "10.96.0.1:80", "10.96.0.2:80", "10.96.0.6:80", "10.96.0.10:80", "10.96.0.14:80")
	ctx := visit(t)

	do(t, ctx, chromedp.Navigate("http://"+address+"/"))
	scheme(t, ctx, "light")
	text(t, ctx, "#facts", "nftables", "200 Services")
	text(t, ctx, "header", "node-0")
	text(t, ctx, "#problems", "Nothing is wrong.")
	do(t, ctx, chromedp.WaitVisible("#changes canvas"))
	for i := range 5 {
		change(manifests(5 - i))
		time.Sleep(200 * time.Millisecond)
	}

	do(t, ctx, chromedp.Click(`a[href="#services"]`))
	text(t, ctx, "#table", "shop/web-000", "shop/web-002", "10.96.0.1:80/TCP", "5 of 6")
	do(t, ctx, chromedp.SendKeys(`input[name="search"]`, "WEB-199"))
	text(t, ctx, "#matching", "1 of 200")
	do(t, ctx, chromedp.SendKeys(`input[name="search"]`, strings.Repeat(kb.Backspace, 7)))
	text(t, ctx, "#matching", "200 of 200")
	do(t, ctx, chromedp.Focus("#table th:nth-child(3) button"), chromedp.KeyEvent(kb.Enter))
	text(t, ctx, "#table tbody tr:first-child", "0 of ", "not served")
	do(t, ctx, chromedp.WaitVisible(`#table th[aria-sort="ascending"]`), chromedp.KeyEvent(kb.Enter))
	text(t, ctx, "#table tbody tr:first-child", "shop/web-000")
	if hash := evaluate(t, ctx, "location.hash"); hash != "#services?sort=endpoints&descending=true" {
		t.Errorf("the table's state is not in the URL: %s", hash)
	}
	_ = evaluate(t, ctx, `history.back(); ""`)
	text(t, ctx, "#table tbody tr:first-child", "0 of ")

	do(t, ctx, chromedp.Click("#table th:nth-child(1) button"))
	text(t, ctx, "#table tbody tr:first-child", "shop/web-000", "Mbit/s")
	shot(t, ctx, "page-services")

	// A refresh leaves the focus where it is.
	do(t, ctx, chromedp.Focus(`#table a[href="#service/shop/web-000"]`))
	_ = evaluate(t, ctx, `document.activeElement.closest("tr").id = "old"; dispatchEvent(new Event("hashchange")); ""`)
	do(t, ctx, chromedp.WaitNotPresent("#old"))
	if focus := evaluate(t, ctx, "document.activeElement.hash ?? ''"); focus != "#service/shop/web-000" {
		t.Errorf("after a refresh, the focus is at %q", focus)
	}
	do(t, ctx, chromedp.KeyEvent(kb.Enter))
	text(t, ctx, "#service-name", "shop/web-000")
	text(t, ctx, "#service", "5 of 6 endpoints are ready", "10.96.0.1:80/TCP", "Policy Cluster", "not ready", "Zone zone-c, this node", "new connections a second")
	text(t, ctx, "#service ul", "10.96.0.1:80/TCP: ClusterIP (explain)", "Policy Cluster: ready endpoints; 5 backends, random")
	text(t, ctx, "#service svg", " connections, ", "/s, ", "bit/s") // a measured rate
	text(t, ctx, "#service details", "All 6 endpoints", "Cluster: not ready")
	do(t, ctx, chromedp.Focus("#service summary"), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible("#service details[open]"))
	_ = evaluate(t, ctx, `document.querySelector("#service details").id = "old"; dispatchEvent(new Event("hashchange")); ""`)
	do(t, ctx, chromedp.WaitNotPresent("#old"))
	if kept := evaluate(t, ctx, `document.querySelector("#service details").open + " " + document.activeElement.tagName`); kept != "true SUMMARY" {
		t.Errorf("after a refresh, the list is open and has the focus: %s", kept)
	}
	do(t, ctx, chromedp.KeyEvent(kb.Enter), chromedp.Blur("#service summary"))
	const background = "getComputedStyle(document.body).backgroundColor"
	light := evaluate(t, ctx, background)
	scheme(t, ctx, "dark")
	if dark := evaluate(t, ctx, background); dark == light {
		t.Errorf("the background is %s in light and in dark", dark)
	}
	shot(t, ctx, "page-service-dark")
	scheme(t, ctx, "light")

	do(t, ctx, chromedp.Click(`a[href="#explain"]`), chromedp.SendKeys(`input[name="to"]`, "shop/web-002"+kb.Enter))
	text(t, ctx, "#steps", "shop/web-002")
	text(t, ctx, "#verdict", "STOPS HERE (", "Check the Service's selector")
	text(t, ctx, "#steps", "STOPS HERE (")
	do(t, ctx, chromedp.WaitVisible("#steps .bad"), chromedp.WaitVisible("#verdict .bad"))
	do(t, ctx, chromedp.SetValue(`input[name="to"]`, "shop/nothing"), chromedp.Click("#question button"))
	text(t, ctx, "#steps", "shop/nothing")

	do(t, ctx, chromedp.Click(`a[href="#events"]`))
	text(t, ctx, "#programmed", "change", "full")
	do(t, ctx, chromedp.Click(`a[href="#status"]`))
	text(t, ctx, "#facts", "p50")
	do(t, ctx, chromedp.WaitVisible("#changes canvas"))
	shot(t, ctx, "page-status")
}

// The table shows 10,000 Services in pages.
func TestPageLarge(t *testing.T) {
	const services = 10_000
	var all strings.Builder
	for n := range services {
		all.WriteString(service(n, 2))
	}
	startProxy(t, all.String())
	ctx := visit(t)
	begin := time.Now()
	do(t, ctx, chromedp.Navigate("http://"+address+"/#services"))
	text(t, ctx, "#matching", "10,000 of 10,000")
	t.Logf("the table was there after %s", time.Since(begin).Round(time.Millisecond))
	text(t, ctx, "#page", "Page 1 of 200")
	do(t, ctx, chromedp.Click("#next"))
	text(t, ctx, "#page", "Page 2 of 200")
	begin = time.Now()
	do(t, ctx, chromedp.SendKeys(`input[name="search"]`, "web-9999"))
	text(t, ctx, "#matching", "1 of 10,000")
	text(t, ctx, "#table tbody", "shop/web-9999", "1 of 2")
	t.Logf("the search was answered after %s", time.Since(begin).Round(time.Millisecond))
}
