// SPDX-License-Identifier: Apache-2.0

// Package examples holds manifests to learn from and to try slipstream with.
package examples

import "embed"

// Demo is the folder "demo": what "make demo" has slipstream watch, and in "demo/steps" the versions of its
// files that come later.
//
//go:embed demo
var Demo embed.FS
