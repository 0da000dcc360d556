// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// binary is the slipstream binary that the demo runs.
type binary struct {
	path    string // absolute
	version string // what it says of itself
}

// findBinary looks whether there is a slipstream at path that can be run.
func findBinary(ctx context.Context, path string) (b binary, err error) {
	if b.path, err = filepath.Abs(path); err != nil {
		return b, fmt.Errorf("-slipstream: %w", err)
	}
	if _, err := os.Stat(b.path); err != nil {
		return b, fmt.Errorf("-slipstream: there is no %s; 'go build -o bin/slipstream ./cmd/slipstream' makes one", path)
	}
	out, err := exec.CommandContext(ctx, b.path, "version").Output()
	if err != nil {
		return b, fmt.Errorf("-slipstream: %s version: %w", path, err)
	}
	b.version = strings.TrimSpace(string(out))
	return b, nil
}
