// SPDX-License-Identifier: Apache-2.0

package scenario

import "testing"

// TestDesired runs every story without a kernel.
func TestDesired(t *testing.T) { Run(t, "", nil, nil) }
