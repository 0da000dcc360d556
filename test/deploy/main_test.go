// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/deploy/container"
)

func TestMain(m *testing.M) {
	container.Init()
	code := m.Run()
	for _, dir := range imageRoots {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}
