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
	"strings"
	"syscall"

	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
		if status, is := errors.AsType[exitStatus](err); is {
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
		Version:       versionText(),
		SilenceUsage:  true,
		SilenceErrors: true,
		// As cobra does without Args, but with the hint to --help.
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			err := cobra.NoArgs(cmd, args)
			if err == nil {
				return nil
			}
			if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
				return fmt.Errorf("%w: did you mean %s?", err, strings.Join(like, " or "))
			}
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run:", []*cobra.Command{newRun(), newFastPathAgent(), newDrained()}},
		{"Look:", []*cobra.Command{newStatus(), newServices(), newTop(), newExplain(), newVerify(), newFlows()}},
		{"Change:", []*cobra.Command{newMigrate(), newCleanup()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	root.AddCommand(newVersion())
	hint(root)
	return root
}

// hint has usage errors of commands name their help.
func hint(cmd *cobra.Command) {
	see := func(c *cobra.Command, err error) error {
		if err == nil || errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w (see '%s --help')", err, c.CommandPath())
	}
	cmd.SetFlagErrorFunc(see)
	if valid := cmd.Args; valid != nil {
		cmd.Args = func(c *cobra.Command, args []string) error { return see(c, valid(c, args)) }
	}
	for _, c := range cmd.Commands() {
		hint(c)
	}
}

// version is set when the binary is built (see the Makefile).
var version = "devel"

func versionText() string {
	return fmt.Sprintf("%s %s %s/%s", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), map[string]string{"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			fmt.Fprintln(cmd.OutOrStdout(), "slipstream", versionText())
			return nil
		},
	}
	addOutput(cmd, &output)
	return cmd
}
