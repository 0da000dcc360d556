// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"fmt"
	"os"
)

// Root is the right to change a kernel's network configuration. It is about the user,
// not about the kernel; capabilities short of user 0 do not count, because the commands
// that tests run ask for user 0.
var Root = define("root", probeRoot)

func probeRoot() error {
	if id := os.Geteuid(); id != 0 {
		return fmt.Errorf("running as user %d", id)
	}
	return nil
}
