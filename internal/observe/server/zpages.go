// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
)

// notForMachines is what KEP-4827 and KEP-4828 ask of pages for people.
const notForMachines = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n\n"

// flagz shows the flags (KEP-4828), as text only.
func (s *Server) flagz(*http.Request) string {
	var b strings.Builder
	b.WriteString("\nslipstream flagz\n" + notForMachines)
	for _, name := range slices.Sorted(maps.Keys(s.options.Flags)) {
		fmt.Fprintf(&b, "%s=%s\n", name, s.options.Flags[name])
	}
	return b.String()
}

// statusz shows what runs and since when (KEP-4827), as text only.
func (s *Server) statusz(listed []string) func(*http.Request) string {
	listed = slices.Sorted(slices.Values(listed))
	return func(*http.Request) string {
		now := time.Now()
		return fmt.Sprintf("\nslipstream statusz\n%sStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\nKubernetes version: %s.%s\nMode: %s\nPaths: %s\n",
			notForMachines, s.started.UTC().Format(time.RFC1123), now.Sub(s.started).Round(time.Second), runtime.Version(), s.options.Version,
			metrics.KubernetesMajor, metrics.KubernetesMinor, s.options.Mode, strings.Join(listed, " "))
	}
}
