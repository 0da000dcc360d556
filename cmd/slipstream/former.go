// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"
)

// How long to wait before what has failed is tried again: at first, and at the most.
const (
	firstRetry  = 5 * time.Second
	lastRetries = 5 * time.Minute
)

// removeFormerModes removes what earlier runs have programmed in other modes than this
// one, and tries again until that has worked or ctx ends: what stays may be asked before
// what is programmed now. Failed is told the same thing once.
func removeFormerModes(ctx context.Context, mode string, failed func(error)) {
	persist(ctx, firstRetry, func() error { return removeModes(mode) }, failed)
}

// persist does something until it works, less and less often.
func persist(ctx context.Context, wait time.Duration, do func() error, failed func(error)) {
	said := ""
	for ; ; wait = min(2*wait, lastRetries) {
		err := do()
		if err == nil {
			return
		}
		if text := err.Error(); text != said {
			said = text
			failed(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
