// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	Init() // this binary is process 1 of the machines that it boots
	os.Exit(m.Run())
}

// machine returns a machine with the test kernel, and a context to boot it within.
func machine(t *testing.T) (context.Context, Machine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	kernel, err := Find(ctx, "../build.sh", Versions[0])
	if errors.Is(err, ErrNoKernel) {
		t.Skipf("NOT RUN: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ctx, Machine{Kernel: kernel, Memory: "512M"}
}
