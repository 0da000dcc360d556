// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/backend/nftables"
	"github.com/slipstream-proxy/slipstream/fastpath"
	"github.com/spf13/cobra"
)

func newCleanup() *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup",
		Short: "Remove every trace of slipstream from the kernel",
		Long: `Cleanup removes everything that any earlier run of slipstream has programmed on
this node: the nftables tables "ip slipstream", "ip6 slipstream" and "inet
slipstream-fastpath". New
connections to Services no longer work after it. Established ones go on where
something else on the node translates addresses too, as most pod networks do;
otherwise the kernel stops translating altogether, and they end. Stop 'slipstream
run' before, or it will repair what is removed.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) (err error) {
			b, err := nftables.New(backend.Config{})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, b.Close()) }()
			if err := b.Cleanup(); err != nil {
				return fmt.Errorf("cleanup: %w", err)
			}
			fast, err := fastpath.New(fastpath.Config{}) // off: it only removes
			if err != nil {
				return err
			}
			return fast.Stop()
		},
	}
}
