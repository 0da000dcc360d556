// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// removeFormerModes removes what earlier runs have programmed in other modes than this
// one, and tries again until that has worked or ctx ends: what stays may be asked before
// what is programmed now. Failed is told the same thing once.
func removeFormerModes(ctx context.Context, mode string, failed func(error)) {
	fromSecondsToMinutes := wait.Backoff{Duration: 5 * time.Second, Factor: 2, Steps: 7, Cap: 5 * time.Minute}
	persist(ctx, fromSecondsToMinutes, func() error { return removeModes(ctx, mode) }, failed)
}

// persist does something until it works.
func persist(ctx context.Context, pauses wait.Backoff, do func() error, failed func(error)) {
	said := ""
	_ = pauses.DelayFunc().Until(ctx, true, true, func(context.Context) (done bool, _ error) {
		err := do()
		if err != nil && err.Error() != said {
			said = err.Error()
			failed(err)
		}
		return err == nil, nil
	}) // the error is ctx's
}
