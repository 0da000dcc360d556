// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"strings"

	"k8s.io/klog/v2"
)

// errorLog is where promhttp says what it could not gather.
type errorLog struct{}

// Println implements promhttp.Logger.
func (errorLog) Println(v ...any) {
	klog.ErrorS(nil, "Not all metrics could be gathered", "reason", strings.TrimSpace(fmt.Sprintln(v...)))
}
