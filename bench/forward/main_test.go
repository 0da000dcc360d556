// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"os"
	"testing"

	"github.com/slipstream-proxy/slipstream/bench/bench"
)

func TestMain(m *testing.M) {
	bench.QuietLimit = 0 // times are not looked at
	os.Exit(m.Run())
}
