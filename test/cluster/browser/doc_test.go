// SPDX-License-Identifier: Apache-2.0

// Package browser tests pages in Debian's Chromium, as a visitor uses them: the page of a running
// proxy (uiBindAddress). It is a module of its own, so that chromedp is not in the product's go.mod.
package browser
