// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	initContainer()
	code := m.Run()
	for _, dir := range imageRoots {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}
