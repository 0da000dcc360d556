// SPDX-License-Identifier: Apache-2.0

package proxies

import (
	"context"
	"path/filepath"

	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

// BuildSlipstream builds the command slipstream of this checkout into dir and returns its
// path.
func BuildSlipstream(ctx context.Context, dir string) (string, error) {
	root, err := upstream.Go(ctx, "", "list", "-m", "-f", "{{.Dir}}", "github.com/slipstream-proxy/slipstream")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "slipstream")
	_, err = upstream.Go(ctx, root, "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", path, "./cmd/slipstream")
	return path, err
}
