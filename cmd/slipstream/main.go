// SPDX-License-Identifier: Apache-2.0

// Command slipstream is a Kubernetes Service proxy for one node.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := commandFor(os.Args[0])
	// What is printed has text of others, such as names of objects, and may go to a terminal.
	root.SetOut(&plain.Writer{To: os.Stdout})
	root.SetErr(&plain.Writer{To: os.Stderr})
	if err := root.ExecuteContext(ctx); errors.Is(err, errChanges) {
		os.Exit(2)
	} else if err != nil {
		fmt.Fprintln(root.ErrOrStderr(), root.Name()+":", err)
		var status exitStatus
		if errors.As(err, &status) {
			os.Exit(int(status))
		}
		if errors.Is(err, see.ErrNoProxy) {
			os.Exit(int(exitNoProxy))
		}
		os.Exit(1)
	}
}

// kubeProxy is the program name under which slipstream accepts the flags of kube-proxy.
const kubeProxy = "kube-proxy"

// commandFor returns the root command for a program name.
func commandFor(path string) *cobra.Command {
	if filepath.Base(path) != kubeProxy {
		return newRoot()
	}
	cmd := newRun()
	cmd.Use = kubeProxy
	cmd.Example = ""
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.CompletionOptions.DisableDefaultCmd = true
	return cmd
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "slipstream",
		Short: "Kubernetes Service proxy with incremental nftables updates",
		Long: `Slipstream makes Kubernetes Services work on a Linux node: connections to a
Service's address are sent to one of its endpoints by the kernel. A change to a
Service reaches the kernel at a cost that depends on the change, not on the size
of the cluster.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newRun(), newStatus(), newServices(), newTop(), newExplain(), newVerify(), newMigrate(), newFastPathAgent(), newFlows(), newCleanup(), newVersion())
	return root
}

// version is set when the binary is built (see the Makefile).
var version = "devel"

func versionText() string {
	return fmt.Sprintf("%s %s %s/%s", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), "slipstream", versionText())
		},
	}
}
