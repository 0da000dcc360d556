// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
)

// subject is a proxy that is looked at.
type subject interface {
	name() string
	// start runs the proxy on the stage's n1 and returns when it has programmed the
	// cluster. stop ends it.
	start(ctx context.Context, s *Stage, c *Cluster) (stop func() error, err error)
}

// kubeProxy is the oracle.
type kubeProxy struct {
	release upstream.Release
	control *upstream.ControlPlane
	dir     string
	log     upstream.Log
}

func (k kubeProxy) name() string {
	if k.release == upstream.Previous {
		return "previous kube-proxy"
	}
	return "kube-proxy"
}

func (k kubeProxy) start(ctx context.Context, s *Stage, c *Cluster) (func() error, error) {
	p, err := k.run(ctx, s, c.Settings)
	if err != nil {
		return nil, err
	}
	return p.Close, nil
}
